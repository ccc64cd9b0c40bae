"""A small Django site whose tasks are jobs of a queue in a file. From this folder:

pip install 'jqueue[django]'
python manage.py migrate
python manage.py order ada@example.org
python manage.py jqueue_worker --drain
python manage.py order --list
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
