LdaSums = MlltSums = lda = mllt = None
