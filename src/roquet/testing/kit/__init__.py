"""What a test of an application is given: a broker without sockets, threads and files, whose clock the test turns.

broker.py      Broker: the face
clock.py       Clock: what the test turns; Time: what the cores see of it
driver.py      Driver: what is due when, and when everything has happened
wires.py       connections inside the process
home.py        Home: where clients of such a broker live
published.py   what is in the topics
"""
