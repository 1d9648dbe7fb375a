"""Pages for people who have to answer for privacy: read in a browser, printed, or asked for as JSON.

Every page is one function that gives data, which a template shows and `.json` answers as it is. Who may see a page is
what the REST address says from which its data comes. Nothing here decides: pages read books, and actions are the same
operations that the REST addresses queue, with a reason that the ledger keeps. docs/dashboard.md lists the pages.
"""
