"""The paper's tables and figures as a plan of recipes: run them, write RESULTS.md, and judge the paper's claims."""
