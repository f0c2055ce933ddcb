"""A client of a paid service, built like those that people install: nested resources, a pool of connections, a lock."""

import json
import ssl
import threading
import urllib.request


class Completions:
    def __init__(self, client):
        self._client = client

    def create(self, *, model, messages):
        return self._client._post("/chat/completions", {"model": model, "messages": messages})


class Chat:
    def __init__(self, client):
        self.completions = Completions(client)


class Client:
    def __init__(self, *, base_url, api_key, timeout=10):
        self.base_url, self.api_key, self.timeout = base_url, api_key, timeout
        self.chat = Chat(self)
        self.requests_made = 0
        self._lock, self._local = threading.Lock(), threading.local()
        self._ssl = ssl.create_default_context()
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=self._ssl))

    def _post(self, path, body):
        headers = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers)
        with self._lock:
            self.requests_made += 1
        with self._opener.open(request, timeout=self.timeout) as response:
            return json.load(response)
