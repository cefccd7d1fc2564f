"""Makes the tables of the outbox, unless `wheelq courier --create` has made them."""

from django.db import migrations

from wheelq.contrib.django.outbox.writing import drop_tables, make_tables


class Migration(migrations.Migration):
    """No model stands for the tables: only wheelq reads and writes them."""

    # MariaDB and MySQL make no table inside of a transaction.
    operations = (migrations.RunPython(make_tables, drop_tables, atomic=False),)
