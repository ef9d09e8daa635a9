"""A bank that never loses a cent: payments between accounts over partitioned logs. See docs/olep.md.

Modules:
  __main__    the `payments` command
  bank        the bank's decisions, as one pure function
  bank_check  checks a running bank against its log
  findings    compares the log with the state, as a pure function
  load        generates random payments
  pages       the HTML of the service
  processes   runs executors, the notifier and the views
  queries     reads the views, each query at the consistency it needs
  service     the HTTP service
  settings    where a bank keeps its topics, state and views
  spending    emits a notice when an account spends too much in a day
  statements  statements and balances, by SQL on the executors' state
  views       projections of the bank's log
"""
