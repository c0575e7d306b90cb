"""What tests share: models, sweeps that train, records that no sweep made, and twins of remote things.

``training`` has models, their data and train functions; ``sweeps`` runs a sweep, or records one that never ran;
``recording`` makes records by Tune's callbacks or line by line; ``tasks`` makes starts and specs of trials; ``heads``
makes trainables, and ``fakes`` the gangs below them, which ``contract`` holds to the real one; ``programs`` starts
programs, and ``waiting`` waits.
"""
