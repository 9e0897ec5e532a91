PERDURE_STORE = "sqlite:///shop.db"

ALLOWED_HOSTS = ["localhost"]
ROOT_URLCONF = "pages"
SECRET_KEY = "not needed here: nothing is signed"
