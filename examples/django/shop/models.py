"""The data of the shop."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    amount = models.IntegerField()
    confirmed = models.BooleanField(default=False)
