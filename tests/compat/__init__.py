"""The official clients, mqadmin and broker 4.9.7 against ours: `make interop`."""
