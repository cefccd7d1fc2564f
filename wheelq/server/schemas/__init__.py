"""What requests hold and answers say: pydantic models, which are checked by and shown in the OpenAPI document.

model    what all of them share; the types of ids, topics and times
jobs     one job: made, moved, looked at; many at once; a page of them
topics   topics
leases   jobs leased by a group, and what is answered for them
"""
