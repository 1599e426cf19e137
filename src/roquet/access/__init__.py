"""Access control: who may ask for what, as values. No file, socket or clock is touched here.

addresses     the patterns of white lists
permissions   DENY, PUB, SUB, and how files spell them
accounts      what one access key may do, and the rules of all of them: which line decides
signatures    is this request signed with that secret key? In every form that clients have
needs         the one table: what each request code needs
yaml_text     RocketMQ's plain_acl.yml as rules, and changes to it that keep its comments
audit         who was refused, and why; who asks wrongly too often waits
requests      what requests about accounts change, and what they are told
guard         all of these together: the guard of a broker or name server
"""
