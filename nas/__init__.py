"""The process around supernet and derive: data, search, training, comparison, pictures, page."""
