"""What scores a picture: one file a judge (interfaces.Judge), and the cache that keeps what they said."""
