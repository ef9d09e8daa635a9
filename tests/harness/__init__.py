"""Shared fixtures and fault tools of the test suite.

Modules:
  browser           a Chromium for tests of the console
  command           run the `penstock` command as a user does
  disk              a disk that fills up, slows down, fails or hangs
  faults            pytest fixtures for faults
  fleet             a real Kafka fleet, controlled from synchronous code
  gateway           a gateway in front of a real fleet, in this process
  gateway_process   gateways as separate processes
  java              a fake `java` that formats and runs nodes in milliseconds
  kafka_python      make kafka-python close its sockets
  network           a TCP link that can be cut, refused or delayed
  platform          a fleet started with `penstock up`, with its supervisor
  postgres          a temporary PostgreSQL server
  processes         kill, freeze and thaw processes
  propagation       wait until every broker knows about a change
  reaper            end the processes of a test run that was killed
  relay             a minimal gateway that renames with splice plans
  splice_reference  random frames, and a slow reference for renaming
  valkey            a temporary Valkey or Redis server
"""
