"""`holdfast cronjob`: schedules."""
