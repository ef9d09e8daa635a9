"""Complete programs built on Penstock's libraries.

Modules:
  consume          short programs for the parallel consumer
  error_responses  errors as HTTP responses of the example services
  launcher         starts an example program and supervises its processes
  newsroom         a newspaper on one log
  payments         a bank on partitioned logs
"""
