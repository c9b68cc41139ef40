"""The prompt: reading, completion, history, toolbar. Everything it runs goes through Client."""
