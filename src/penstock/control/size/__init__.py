"""Changes of a physical cluster's size: brokers, cells and controllers that come and go.

Modules:
  automatic           what automatic sizing does with advice
  controller_changes  lists and changes the controllers of physical clusters on request
  controller_steps    the steps that change the controllers of a local cluster
  controllers         what changing the controllers of a cluster changes in the registry
  resize_steps        the steps of growing and shrinking a physical cluster
  resizer             grows and shrinks physical clusters on request
  resizing            what growing and shrinking a physical cluster changes in the registry
  shrink_check        whether a physical cluster can do without some of its brokers
  sizing              advice on the size of physical clusters, and their cost
"""
