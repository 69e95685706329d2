"""Admission: one verdict for every pod that wants a device, before anything else sees it."""
