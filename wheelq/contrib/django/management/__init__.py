"""Django looks for commands here.

commands    `wheelq_worker`
"""
