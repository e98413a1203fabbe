"""x"""
class PublishError(Exception): pass
def check_publish(x): pass
