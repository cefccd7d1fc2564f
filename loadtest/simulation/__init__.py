"""The simulator: a whole fleet in one process, in virtual time, with every random choice decided by a seed.

    seed ──▶ plan ──▶ fleet of real clients, schedulers, workers ──network──▶ server with the real Lua scripts
                          │ answers, writes and runs
                          ▼
                       ledger ──▶ oracle, rest ──▶ verdict

    world        virtual time, and the random numbers of a seed
    story        what happened, line by line
    network      connections, and everything that can happen to them
    process      a process: its event loop, its clocks, its fate
    server       one Redis: sessions, blocking reads, channels, persistence, its clock
    refusals     the errors with which a server refuses commands
    sentinel     names the current primary
    store        the data: commands, scripts, the log of writes
    seams        replaces the product's time, randomness and names
    plan         the plan of a seed: topics, operations, faults, each with its time
    ledger       records everything that happened
    parts        the parts of a fleet, and the clients with which they act
    operations   the operations of producers
    web          the HTTP service
    lessees      callers of the HTTP service that pull jobs
    receiver     the receiver of callbacks
    blocking     a producer with the blocking client
    threads      the threads of a process, and what they wait for
    fleet        the nodes, workers, producers and their handlers
    faults       the faults
    combined     faults in which several things go wrong at the same moment
    zones        time zones whose clocks change during a run
    knobs        small limits of the product, which a seed draws
    reached      counts scripts, branches and messages that runs reach
    drawing      draws the plan of a seed
    oracle       checks every promise
    promises     promises about dead jobs, kept entries, expiry, priority and misfires
    rest         checks that no keys are left when all jobs are done
    run          one run, from its plan to its verdict
    plants       defects put in on purpose
    trials       many runs, each in a fork
    shrink       the few steps of a run that still fail

The product does not know that it is simulated. Its loops run on `process.SimLoop`, which has virtual time and
connects through `network`; every byte between redis-py and the server is real. A killed process never gets a turn
again, so it closes and cancels nothing. A frozen process gets no turn until it wakes up.
"""
