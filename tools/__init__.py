"""Scripts for working on this repository. They are not part of the product.

Modules:
  chromium           fetches a Chromium for the browser tests
  compile_data_path  compiles the gateway's data path with mypyc
  jars               pins the checksums of the Java archives after a POM has changed
  monitoring         alert rules and a dashboard, from the metric catalogue
  reference          writes the reference pages under docs/, and deploy/ files, from the code
  vocabulary         lists words and phrases this project replaces
"""
