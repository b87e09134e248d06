"""SoyBean's Theorems 1 to 3, Tofu's Lemma 2 and Theorems 3 to 5, tried on random cases; counter-examples."""
