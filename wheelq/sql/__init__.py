"""`SqlOutbox`: schedules jobs in your own database's transaction; `wheelq courier` delivers them.

    BEGIN ─ your rows ─ outbox.schedule(connection, …) ─ COMMIT ──▶ courier ──▶ Redis       rolled back: never

courier     `SqlCourier`: delivers the rows to Redis
outbox      `SqlOutbox`: writes calls into the caller's transaction
rows        `Rows`: what a courier does with the tables
table       the tables, and what differs between databases

Needs SQLAlchemy and a driver: `pip install 'wheelq[sql]' psycopg[binary]`, or `pymysql`; SQLite needs none.
"""

try:
    from wheelq.sql.outbox import SqlOutbox
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise ModuleNotFoundError("SqlOutbox needs SQLAlchemy: pip install 'wheelq[sql]'", name=error.name) from error

__all__ = ["SqlOutbox"]
