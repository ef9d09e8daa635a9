"""Penstock: stock Apache Kafka as a cloud-native, multi-tenant event-streaming platform."""

__version__ = "0.1.0"
