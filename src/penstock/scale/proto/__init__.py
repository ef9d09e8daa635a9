"""KEDA's external scaler protocol. Generated from externalscaler.proto by `make proto`; do not edit."""
