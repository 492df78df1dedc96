"""What Pixelpod's gRPC servers share: the frontend and a group's endpoint answer, listen and log alike."""
