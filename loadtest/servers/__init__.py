"""Real servers on this machine, to measure and to break.

measured    the one server that a bench uses: a private one, or the one at --url
nodes       several servers started and ended together: cluster, sentinel
proxy       a TCP proxy that delays, loses and cuts connections
hosts       a clock that can be set, and a disk that can be full
kafka       a mock cluster of Kafka, in this process
processes   other server processes that a trial needs
"""
