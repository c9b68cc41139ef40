from pymysql.constants import CLIENT as CLIENT
