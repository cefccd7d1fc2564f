"""The simulator: a whole fleet in one process, in virtual time, with every random choice decided by a seed.

    seed ──▶ plan ──▶ fleet of real clients, schedulers, workers ──network──▶ server with the real Lua scripts
                          │ answers, writes and runs
                          ▼
                       ledger ──▶ oracle, rest ──▶ verdict

    world        virtual time, and the random numbers of a seed
    story        what happened, line by line
    loop         the event loop of one simulated process
    process      a process: its loop, its clocks, its fate
    network      connections, and everything that can happen to them
    server       one Redis: sessions, blocking reads, channels, persistence, its clock
    refusals     the errors with which a server refuses commands
    sentinel     names the current primary
    store        the data: commands, scripts, the log of writes
    seams        replaces the product's time, randomness and names
    plan         the plan of a seed: topics, operations, faults, each with its time
    operations   the operations of producers
    due_ranges   operations that change all jobs that are due in a range
    web          the HTTP service, its callers and lessees
    receiver     the receiver of callbacks
    blocking     a producer with the blocking client
    threads      the threads of a process, and what they wait for
    faults       the faults
    fleet        the nodes, workers, producers and their handlers
    ledger       records everything that happened
    oracle       checks every promise
    rest         checks that no keys are left when all jobs are done
    run          one run, from its plan to its verdict
    trials       many runs, each in a fork

The product does not know that it is simulated. Its loops run on `loop.SimLoop`, which has virtual time and connects
through `network`; every byte between redis-py and the server is real. A killed process never gets a turn again, so it
closes and cancels nothing. A frozen process gets no turn until it wakes up.
"""
