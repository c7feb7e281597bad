"""Reading and publishing records for HTTP and WebSocket, whichever broker leads a log."""
