"""The tabs of the web page, one package each."""
