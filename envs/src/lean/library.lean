/-- A statement implies itself. -/
theorem t001 (p : Prop) : p → p := by
  intro h
  exact h

/-- From both, the first. -/
theorem t002 (p q : Prop) (h : p ∧ q) : p := by
  exact h.1

/-- From both, the second. -/
theorem t003 (p q : Prop) (h : p ∧ q) : q := by
  exact h.2

/-- And is symmetric. -/
theorem t004 (p q : Prop) (h : p ∧ q) : q ∧ p := by
  exact ⟨h.2, h.1⟩

/-- Or is symmetric. -/
theorem t005 (p q : Prop) (h : p ∨ q) : q ∨ p := by
  rcases h with h | h
  right
  exact h
  left
  exact h

/-- Two facts make a conjunction. -/
theorem t006 (p q : Prop) (hp : p) (hq : q) : p ∧ q := by
  constructor
  exact hp
  exact hq

/-- Modus ponens. -/
theorem t007 (p q : Prop) (h : p → q) (hp : p) : q := by
  apply h
  exact hp

/-- Implication is transitive. -/
theorem t008 (p q r : Prop) (h : p → q) (g : q → r) : p → r := by
  intro hp
  apply g
  apply h
  exact hp

/-- Contraposition. -/
theorem t009 (p q : Prop) (h : p → q) : ¬q → ¬p := by
  intro hq
  intro hp
  apply hq
  exact h hp

/-- Double negation may be added. -/
theorem t010 (p : Prop) (h : p) : ¬¬p := by
  intro hn
  exact hn h

/-- Double negation may be removed. -/
theorem t011 (p : Prop) (h : ¬¬p) : p := by
  by_contra hn
  exact h hn

/-- Excluded middle. -/
theorem t012 (p : Prop) : p ∨ ¬p := by
  exact em p

/-- Anything follows from a contradiction. -/
theorem t013 (p q : Prop) (h : p) (hn : ¬p) : q := by
  contradiction

/-- Anything follows from False. -/
theorem t014 (p : Prop) (h : False) : p := by
  exfalso
  exact h

/-- True holds. -/
theorem t015 : True := by
  trivial

/-- And is associative. -/
theorem t016 (p q r : Prop) (h : (p ∧ q) ∧ r) : p ∧ q ∧ r := by
  obtain ⟨⟨hp, hq⟩, hr⟩ := h
  exact ⟨hp, hq, hr⟩

/-- Or is associative. -/
theorem t017 (p q r : Prop) (h : (p ∨ q) ∨ r) : p ∨ q ∨ r := by
  tauto

/-- And distributes over or. -/
theorem t018 (p q r : Prop) : p ∧ (q ∨ r) ↔ (p ∧ q) ∨ (p ∧ r) := by
  constructor
  intro ⟨hp, h⟩
  rcases h with hq | hr
  exact Or.inl ⟨hp, hq⟩
  exact Or.inr ⟨hp, hr⟩
  intro h
  rcases h with h | h
  exact ⟨h.1, Or.inl h.2⟩
  exact ⟨h.1, Or.inr h.2⟩

/-- Or distributes over and. -/
theorem t019 (p q r : Prop) : p ∨ (q ∧ r) ↔ (p ∨ q) ∧ (p ∨ r) := by
  tauto

/-- De Morgan's law for or. -/
theorem t020 (p q : Prop) : ¬(p ∨ q) ↔ ¬p ∧ ¬q := by
  tauto

/-- De Morgan's law for and. -/
theorem t021 (p q : Prop) : ¬(p ∧ q) ↔ ¬p ∨ ¬q := by
  tauto

/-- Currying. -/
theorem t022 (p q r : Prop) : (p ∧ q → r) ↔ (p → q → r) := by
  constructor
  intro h hp hq
  exact h ⟨hp, hq⟩
  intro h hpq
  exact h hpq.1 hpq.2

/-- Equivalence is symmetric. -/
theorem t023 (p q : Prop) (h : p ↔ q) : q ↔ p := by
  exact h.symm

/-- Equivalence carries truth forth. -/
theorem t024 (p q : Prop) (h : p ↔ q) (hp : p) : q := by
  exact h.mp hp

/-- Equivalence carries truth back. -/
theorem t025 (p q : Prop) (h : p ↔ q) (hq : q) : p := by
  exact h.mpr hq

/-- Equivalence is transitive. -/
theorem t026 (p q r : Prop) (h : p ↔ q) (g : q ↔ r) : p ↔ r := by
  rw [h]
  exact g

/-- Implication as a disjunction. -/
theorem t027 (p q : Prop) : (p → q) ↔ (¬p ∨ q) := by
  tauto

/-- Peirce's law. -/
theorem t028 (p q : Prop) : ((p → q) → p) → p := by
  tauto

/-- Nothing is both true and false. -/
theorem t029 (p : Prop) : ¬(p ∧ ¬p) := by
  intro h
  exact h.2 h.1

/-- Nothing is equivalent to its negation. -/
theorem t030 (p : Prop) : ¬(p ↔ ¬p) := by
  tauto

/-- An equivalence from both directions. -/
theorem t031 (p q : Prop) (h : p → q) (g : q → p) : p ↔ q := by
  exact ⟨h, g⟩

/-- Proof by cases. -/
theorem t032 (p q r : Prop) (h : p ∨ q) (hp : p → r) (hq : q → r) : r := by
  rcases h with h | h
  exact hp h
  exact hq h

/-- Conjunction with True changes nothing. -/
theorem t033 (p : Prop) : p ∧ True ↔ p := by
  tauto

/-- Disjunction with False changes nothing. -/
theorem t034 (p : Prop) : p ∨ False ↔ p := by
  tauto

/-- What holds in either case holds. -/
theorem t035 (p q : Prop) (h : p → q) (g : ¬p → q) : q := by
  by_cases hp : p
  exact h hp
  exact g hp

/-- Implication distributes over and. -/
theorem t036 (p q r : Prop) (h : p → q ∧ r) : (p → q) ∧ (p → r) := by
  constructor
  intro hp
  exact (h hp).1
  intro hp
  exact (h hp).2

/-- One of two alternatives is ruled out. -/
theorem t037 (p q : Prop) (h : p ∨ q) (hn : ¬p) : q := by
  rcases h with h | h
  contradiction
  exact h

/-- A disjunction may be weakened. -/
theorem t038 (p q r : Prop) (h : p ∨ q) (g : q → r) : p ∨ r := by
  rcases h with h | h
  left
  exact h
  right
  exact g h

/-- Two and two are four. -/
theorem t039 : 2 + 2 = 4 := by
  norm_num

/-- Seven times eight. -/
theorem t040 : 7 * 8 = 56 := by
  norm_num

/-- Natural subtraction stops at zero. -/
theorem t041 : 3 - 5 = 0 := by
  decide

/-- A power of two. -/
theorem t042 : 2 ^ 10 = 1024 := by
  norm_num

/-- Division rounds down. -/
theorem t043 : 17 / 5 = 3 := by
  norm_num

/-- A remainder. -/
theorem t044 : 17 % 5 = 2 := by
  norm_num

/-- Dividing by zero gives zero. -/
theorem t045 : 9 / 0 = 0 := by
  decide

/-- A remainder modulo zero. -/
theorem t046 : 9 % 0 = 9 := by
  decide

/-- Twelve divides sixty. -/
theorem t047 : 12 ∣ 60 := by
  norm_num

/-- Seven does not divide fifty. -/
theorem t048 : ¬7 ∣ 50 := by
  norm_num

/-- A comparison. -/
theorem t049 : 3 ^ 4 < 4 ^ 4 := by
  norm_num

/-- Five is not six. -/
theorem t050 : 5 ≠ 6 := by
  norm_num

/-- Negative numbers add up. -/
theorem t051 : (-3 : ℤ) + 5 = 2 := by
  norm_num

/-- Integer subtraction goes below zero. -/
theorem t052 : (3 : ℤ) - 5 = -2 := by
  norm_num

/-- The remainder of a negative number is not negative. -/
theorem t053 : (-7 : ℤ) % 3 = 2 := by
  decide

/-- Division of a negative number rounds down. -/
theorem t054 : (-7 : ℤ) / 2 = -4 := by
  decide

/-- Every square below five is below twenty. -/
theorem t055 : ∀ n : ℕ, n < 5 → n * n < 20 := by
  decide

/-- Some number below ten has remainder 3 modulo 7 and is odd. -/
theorem t056 : ∃ n : ℕ, n < 10 ∧ n % 7 = 3 ∧ n % 2 = 1 := by
  decide

/-- Squares modulo four are 0 or 1, tried up to eight. -/
theorem t057 : ∀ n : ℕ, n < 8 → n * n % 4 = 0 ∨ n * n % 4 = 1 := by
  decide

/-- Both hold. -/
theorem t058 : 2 < 3 ∧ 3 < 4 := by
  constructor
  norm_num
  norm_num

/-- There is a number greater than ten. -/
theorem t059 : ∃ n : ℕ, n > 10 := by
  use 11
  norm_num

/-- There is an even number between 5 and 7. -/
theorem t060 : ∃ n : ℕ, 5 < n ∧ n < 7 ∧ n % 2 = 0 := by
  use 6
  decide

/-- Every number has a greater one. -/
theorem t061 : ∀ n : ℕ, ∃ m : ℕ, n < m := by
  intro n
  use n + 1
  omega

/-- There is no greatest integer. -/
theorem t062 : ∀ n : ℤ, ∃ m : ℤ, m > n := by
  intro n
  use n + 1
  linarith

/-- Every integer has a negative. -/
theorem t063 (a : ℤ) : ∃ b : ℤ, a + b = 0 := by
  use -a
  ring

/-- A witness is passed on. -/
theorem t064 (h : ∃ n : ℕ, n > 5) : ∃ n : ℕ, n > 4 := by
  obtain ⟨n, hn⟩ := h
  use n
  omega

/-- Not all numbers are zero. -/
theorem t065 : ¬∀ n : ℕ, n = 0 := by
  intro h
  have h1 := h 1
  omega

/-- No natural number is below zero. -/
theorem t066 : ¬∃ n : ℕ, n < 0 := by
  intro h
  obtain ⟨n, hn⟩ := h
  omega

/-- A sum of two squares. -/
theorem t067 : ∃ a b : ℕ, a ^ 2 + b ^ 2 = 25 := by
  use 3, 4
  norm_num

/-- Twice a number is even. -/
theorem t068 (n : ℕ) : ∃ k, 2 * n = k + k := by
  use n
  ring

/-- Universal statements specialise. -/
theorem t069 (h : ∀ n : ℕ, n ≥ 0 → n * 0 = 0) : 3 * 0 = 0 := by
  exact h 3 (by norm_num)

/-- What holds of all holds of some. -/
theorem t070 (h : ∀ n : ℤ, n * n ≥ 0) : ∃ n : ℤ, n * n ≥ 0 := by
  exact ⟨0, h 0⟩

/-- The sum of two even numbers is even. -/
theorem t071 (a b : ℕ) (ha : ∃ k, a = 2 * k) (hb : ∃ k, b = 2 * k) : ∃ k, a + b = 2 * k := by
  obtain ⟨i, hi⟩ := ha
  obtain ⟨j, hj⟩ := hb
  use i + j
  omega

/-- The sum of two odd numbers is even. -/
theorem t072 (a b : ℕ) (ha : ∃ k, a = 2 * k + 1) (hb : ∃ k, b = 2 * k + 1) : ∃ k, a + b = 2 * k := by
  obtain ⟨i, hi⟩ := ha
  obtain ⟨j, hj⟩ := hb
  use i + j + 1
  omega

/-- A multiple of an even number is even. -/
theorem t073 (a b : ℕ) (ha : ∃ k, a = 2 * k) : ∃ k, a * b = 2 * k := by
  obtain ⟨i, hi⟩ := ha
  use i * b
  rw [hi]
  ring

/-- The product of two odd numbers is odd. -/
theorem t074 (a b : ℕ) (ha : ∃ k, a = 2 * k + 1) (hb : ∃ k, b = 2 * k + 1) : ∃ k, a * b = 2 * k + 1 := by
  obtain ⟨i, hi⟩ := ha
  obtain ⟨j, hj⟩ := hb
  use 2 * i * j + i + j
  rw [hi, hj]
  ring

/-- The square of an even number is a multiple of four. -/
theorem t075 (n : ℤ) (h : ∃ k : ℤ, n = 2 * k) : ∃ m : ℤ, n ^ 2 = 4 * m := by
  obtain ⟨k, hk⟩ := h
  use k ^ 2
  subst hk
  ring

/-- Addition commutes. -/
theorem t076 (a b : ℕ) : a + b = b + a := by
  ring

/-- Multiplication commutes. -/
theorem t077 (a b : ℕ) : a * b = b * a := by
  ring

/-- The square of a sum. -/
theorem t078 (a b : ℕ) : (a + b) ^ 2 = a ^ 2 + 2 * a * b + b ^ 2 := by
  ring

/-- The square of a difference. -/
theorem t079 (a b : ℤ) : (a - b) ^ 2 = a ^ 2 - 2 * a * b + b ^ 2 := by
  ring

/-- The difference of squares. -/
theorem t080 (a b : ℤ) : a ^ 2 - b ^ 2 = (a + b) * (a - b) := by
  ring

/-- The cube of a sum. -/
theorem t081 (a b : ℕ) : (a + b) ^ 3 = a ^ 3 + 3 * a ^ 2 * b + 3 * a * b ^ 2 + b ^ 3 := by
  ring

/-- The difference of cubes. -/
theorem t082 (a b : ℤ) : a ^ 3 - b ^ 3 = (a - b) * (a ^ 2 + a * b + b ^ 2) := by
  ring

/-- The sum of cubes. -/
theorem t083 (a b : ℤ) : a ^ 3 + b ^ 3 = (a + b) * (a ^ 2 - a * b + b ^ 2) := by
  ring

/-- Multiplication distributes. -/
theorem t084 (a b c : ℕ) : a * (b + c) = a * b + a * c := by
  ring

/-- A product of two sums. -/
theorem t085 (a b : ℕ) : (a + 1) * (b + 1) = a * b + a + b + 1 := by
  ring

/-- The square of three terms. -/
theorem t086 (a b c : ℤ) : (a + b + c) ^ 2 = a ^ 2 + b ^ 2 + c ^ 2 + 2 * (a * b + b * c + c * a) := by
  ring

/-- Completing the square. -/
theorem t087 (x : ℤ) : x ^ 2 + 6 * x + 9 = (x + 3) ^ 2 := by
  ring

/-- A factorisation. -/
theorem t088 (x : ℤ) : x ^ 2 - 5 * x + 6 = (x - 2) * (x - 3) := by
  ring

/-- Brahmagupta's identity. -/
theorem t089 (a b c d : ℤ) : (a ^ 2 + b ^ 2) * (c ^ 2 + d ^ 2) = (a * c - b * d) ^ 2 + (a * d + b * c) ^ 2 := by
  ring

/-- A power rule. -/
theorem t090 (x : ℕ) : x ^ 2 * x ^ 3 = x ^ 5 := by
  ring

/-- A power with a sum above. -/
theorem t091 (x n : ℕ) : x ^ (n + 2) = x ^ n * x * x := by
  ring

/-- Doubling a power of two. -/
theorem t092 (n : ℕ) : 2 ^ (n + 1) = 2 ^ n + 2 ^ n := by
  ring

/-- The fourth power of a sum. -/
theorem t093 (x : ℤ) : (x + 1) ^ 4 = x ^ 4 + 4 * x ^ 3 + 6 * x ^ 2 + 4 * x + 1 := by
  ring

/-- Negation of a product. -/
theorem t094 (a b : ℤ) : -a * b = -(a * b) := by
  ring

/-- Minus times minus. -/
theorem t095 (a b : ℤ) : -a * -b = a * b := by
  ring

/-- Sophie Germain's identity. -/
theorem t096 (a b : ℤ) : a ^ 4 + 4 * b ^ 4 = (a ^ 2 + 2 * b ^ 2 + 2 * a * b) * (a ^ 2 + 2 * b ^ 2 - 2 * a * b) := by
  ring

/-- Order is transitive. -/
theorem t097 (a b c : ℕ) (h : a ≤ b) (g : b ≤ c) : a ≤ c := by
  omega

/-- Strict order is transitive. -/
theorem t098 (a b c : ℕ) (h : a < b) (g : b < c) : a < c := by
  omega

/-- Adding keeps order. -/
theorem t099 (a b c d : ℕ) (h : a ≤ b) (g : c ≤ d) : a + c ≤ b + d := by
  omega

/-- A number is at most its sum with another. -/
theorem t100 (a b : ℕ) : a ≤ a + b := by
  omega

/-- A number is less than its successor. -/
theorem t101 (n : ℕ) : n < n + 1 := by
  omega

/-- Between neighbours lies nothing. -/
theorem t102 (n m : ℕ) (h : n < m) (g : m < n + 2) : m = n + 1 := by
  omega

/-- Truncated subtraction and addition. -/
theorem t103 (a b : ℕ) (h : b ≤ a) : a - b + b = a := by
  omega

/-- Subtracting more leaves nothing. -/
theorem t104 (a b : ℕ) (h : a ≤ b) : a - b = 0 := by
  omega

/-- Subtraction never adds. -/
theorem t105 (a b : ℕ) : a - b ≤ a := by
  omega

/-- A sum of even terms is not odd. -/
theorem t106 (a b : ℕ) : 2 * a ≠ 2 * b + 1 := by
  omega

/-- A remainder is less than the modulus. -/
theorem t107 (n : ℕ) : n % 5 < 5 := by
  omega

/-- A number is even or odd. -/
theorem t108 (n : ℕ) : n % 2 = 0 ∨ n % 2 = 1 := by
  omega

/-- Next to an even number is an odd one. -/
theorem t109 (n : ℕ) (h : n % 2 = 0) : (n + 1) % 2 = 1 := by
  omega

/-- Quotient and remainder. -/
theorem t110 (n : ℕ) : 7 * (n / 7) + n % 7 = n := by
  omega

/-- Halving is at most the number. -/
theorem t111 (n : ℕ) : n / 2 ≤ n := by
  omega

/-- A multiple of six is a multiple of three. -/
theorem t112 (n : ℕ) (h : n % 6 = 0) : n % 3 = 0 := by
  omega

/-- A multiple of four is even. -/
theorem t113 (n : ℕ) (h : 4 ∣ n) : 2 ∣ n := by
  omega

/-- Two and three make six. -/
theorem t114 (n : ℕ) (h : 2 ∣ n) (g : 3 ∣ n) : 6 ∣ n := by
  omega

/-- A system of two equations. -/
theorem t115 (x y : ℤ) (h : x + y = 10) (g : x - y = 4) : x = 7 := by
  omega

/-- A linear equation. -/
theorem t116 (x : ℤ) (h : 3 * x + 5 = 20) : x = 5 := by
  omega

/-- No whole number solves it. -/
theorem t117 (x : ℤ) : 2 * x ≠ 7 := by
  omega

/-- Chickens and rabbits. -/
theorem t118 (c r : ℕ) (h : c + r = 35) (g : 2 * c + 4 * r = 94) : c = 23 := by
  omega

/-- One of three consecutive numbers is a multiple of three. -/
theorem t119 (n : ℕ) : n % 3 = 0 ∨ (n + 1) % 3 = 0 ∨ (n + 2) % 3 = 0 := by
  omega

/-- The remainder of a sum. -/
theorem t120 (a b : ℕ) (h : a % 3 = 1) (g : b % 3 = 2) : (a + b) % 3 = 0 := by
  omega

/-- Trichotomy. -/
theorem t121 (a b : ℤ) : a < b ∨ a = b ∨ b < a := by
  omega

/-- Not less is at least. -/
theorem t122 (a b : ℤ) (h : ¬a < b) : b ≤ a := by
  omega

/-- A number at most zero is zero. -/
theorem t123 (n : ℕ) (h : n ≤ 0) : n = 0 := by
  omega

/-- A positive number has a predecessor. -/
theorem t124 (n : ℕ) (h : 0 < n) : n - 1 + 1 = n := by
  omega

/-- Subtraction twice. -/
theorem t125 (a b c : ℕ) : a - b - c = a - (b + c) := by
  omega

/-- An integer remainder lies in range. -/
theorem t126 (n : ℤ) : 0 ≤ n % 4 ∧ n % 4 < 4 := by
  omega

/-- The sum of two remainders. -/
theorem t127 (n : ℕ) : n % 2 + (n + 1) % 2 = 1 := by
  omega

/-- Weighted bounds. -/
theorem t128 (x y : ℤ) (h : x ≤ 3) (g : y ≤ 4) : 2 * x + 3 * y ≤ 18 := by
  omega

/-- Equality from two bounds. -/
theorem t129 (a b : ℤ) (h : a ≤ b) (g : b ≤ a) : a = b := by
  omega

/-- Three coins and two coins. -/
theorem t130 (x y : ℕ) (h : 5 * x + 2 * y = 11) (g : x ≥ 1) : x = 1 := by
  omega

/-- Ages. -/
theorem t131 (a b : ℕ) (h : a = b + 8) (g : a + b = 30) : b = 11 := by
  omega

/-- A bound from two bounds. -/
theorem t132 (x y : ℤ) (h : x + y ≤ 5) (g : x - y ≤ 1) : x ≤ 3 := by
  linarith

/-- Sums of positive numbers are positive. -/
theorem t133 (a b : ℤ) (h : 0 < a) (g : 0 < b) : 0 < a + b := by
  linarith

/-- The greater of a sum. -/
theorem t134 (x y : ℤ) (h : x < y) : 2 * x < x + y := by
  linarith

/-- Adding the same keeps order. -/
theorem t135 (a b c : ℤ) (h : a < b) : a + c < b + c := by
  linarith

/-- Subtracting turns order. -/
theorem t136 (a b c : ℤ) (h : a ≤ b) : c - b ≤ c - a := by
  linarith

/-- Chains of inequalities. -/
theorem t137 (a b c d : ℤ) (h : a ≤ b) (g : b < c) (k : c ≤ d) : a < d := by
  linarith

/-- Twice the middle. -/
theorem t138 (a b c : ℤ) (h : a + c = 2 * b) (g : a < b) : b < c := by
  linarith

/-- Squares are not negative. -/
theorem t139 (a : ℤ) : 0 ≤ a ^ 2 := by
  exact sq_nonneg a

/-- Twice a product is at most the squares. -/
theorem t140 (a b : ℤ) : 2 * a * b ≤ a ^ 2 + b ^ 2 := by
  nlinarith [sq_nonneg (a - b)]

/-- A square plus one is positive. -/
theorem t141 (a : ℤ) : 0 < a ^ 2 + 1 := by
  have h := sq_nonneg a
  linarith

/-- The sum of three squares bounds the products. -/
theorem t142 (a b c : ℤ) : a * b + b * c + c * a ≤ a ^ 2 + b ^ 2 + c ^ 2 := by
  nlinarith [sq_nonneg (a - b), sq_nonneg (b - c), sq_nonneg (c - a)]

/-- The product of positive numbers is positive. -/
theorem t143 (a b : ℤ) (h : 0 < a) (g : 0 < b) : 0 < a * b := by
  exact mul_pos h g

/-- A quadratic with no root. -/
theorem t144 (x : ℤ) : 0 < x ^ 2 - 2 * x + 2 := by
  nlinarith [sq_nonneg (x - 1)]

/-- A product is zero only if a factor is. -/
theorem t145 (a b : ℤ) (h : a * b = 0) : a = 0 ∨ b = 0 := by
  exact mul_eq_zero.mp h

/-- Four times a product is at most the square of the sum. -/
theorem t146 (a b : ℤ) : 4 * a * b ≤ (a + b) ^ 2 := by
  nlinarith [sq_nonneg (a - b)]

/-- Equality is symmetric. -/
theorem t147 (a b : ℕ) (h : a = b) : b = a := by
  rw [h]

/-- Equality is transitive. -/
theorem t148 (a b c : ℕ) (h : a = b) (g : b = c) : a = c := by
  rw [h, g]

/-- Equals may be put for equals. -/
theorem t149 (a b c : ℕ) (h : a = b) : a * c = b * c := by
  rw [h]

/-- Rewriting backwards. -/
theorem t150 (a b c : ℕ) (h : a = b) : b + c = a + c := by
  rw [← h]

/-- Rewriting a hypothesis. -/
theorem t151 (a b c : ℕ) (h : a = b) (g : a + c = 5) : b + c = 5 := by
  rw [h] at g
  exact g

/-- Substitution. -/
theorem t152 (x y : ℕ) (h : y = 3) (g : x = y + 2) : x = 5 := by
  subst h
  omega

/-- Zero is neutral on the left. -/
theorem t153 (n : ℕ) : 0 + n = n := by
  simp

/-- Zero annihilates. -/
theorem t154 (n : ℕ) : n * 0 = 0 := by
  simp

/-- One is neutral. -/
theorem t155 (n : ℤ) : 1 * n = n := by
  exact one_mul n

/-- Addition is associative. -/
theorem t156 (a b c : ℕ) : a + b + c = a + (b + c) := by
  exact add_assoc a b c

/-- Terms change places. -/
theorem t157 (a b c : ℕ) : a + (b + c) = b + (a + c) := by
  exact add_left_comm a b c

/-- A square as a product. -/
theorem t158 (a : ℤ) : a ^ 2 = a * a := by
  exact pow_two a

/-- A value put into a polynomial. -/
theorem t159 (x : ℤ) (h : x = 2) : x ^ 3 + x = 10 := by
  rw [h]
  norm_num

/-- A factor is taken out. -/
theorem t160 (a b c : ℕ) (h : b + c = 10) : a * b + a * c = a * 10 := by
  rw [← h]
  ring

/-- Everything divides zero. -/
theorem t161 (a : ℕ) : a ∣ 0 := by
  exact dvd_zero a

/-- One divides everything. -/
theorem t162 (a : ℕ) : 1 ∣ a := by
  exact one_dvd a

/-- A number divides itself. -/
theorem t163 (a : ℤ) : a ∣ a := by
  exact dvd_refl a

/-- A factor divides a product. -/
theorem t164 (a b : ℕ) : a ∣ a * b := by
  exact dvd_mul_right a b

/-- Divisibility is transitive. -/
theorem t165 (a b c : ℕ) (h : a ∣ b) (g : b ∣ c) : a ∣ c := by
  exact dvd_trans h g

/-- A common divisor divides the sum. -/
theorem t166 (a b c : ℕ) (h : a ∣ b) (g : a ∣ c) : a ∣ b + c := by
  exact dvd_add h g

/-- A divisor of a factor divides the product. -/
theorem t167 (a b c : ℕ) (h : a ∣ b) : a ∣ b * c := by
  exact dvd_mul_of_dvd_left h c

/-- Consecutive even numbers. -/
theorem t168 (n : ℕ) (h : 2 ∣ n) : 2 ∣ n + 2 := by
  omega

/-- A number and its double. -/
theorem t169 (n : ℕ) : 3 ∣ n + 2 * n := by
  omega

/-- Zero or a successor. -/
theorem t170 (n : ℕ) : n = 0 ∨ ∃ m, n = m + 1 := by
  rcases n with _ | m
  left
  rfl
  right
  exact ⟨m, rfl⟩

/-- Powers of two outgrow numbers. -/
theorem t171 (n : ℕ) : n < 2 ^ n := by
  induction' n with k ih
  norm_num
  rw [pow_succ]
  omega

/-- Powers of two are positive. -/
theorem t172 (n : ℕ) : 0 < 2 ^ n := by
  induction' n with k ih
  norm_num
  rw [pow_succ]
  omega

/-- A number plus its square is even. -/
theorem t173 (n : ℕ) : 2 ∣ n * n + n := by
  induction' n with k ih
  norm_num
  have h : (k + 1) * (k + 1) + (k + 1) = (k * k + k) + 2 * (k + 1) := by ring
  rw [h]
  omega

/-- A cube minus its root is a multiple of three. -/
theorem t174 (n : ℕ) : 3 ∣ n ^ 3 + 2 * n := by
  induction' n with k ih
  norm_num
  have h : (k + 1) ^ 3 + 2 * (k + 1) = (k ^ 3 + 2 * k) + 3 * (k ^ 2 + k + 1) := by ring
  rw [h]
  exact dvd_add ih (dvd_mul_right 3 (k ^ 2 + k + 1))

/-- A power of four leaves one modulo three. -/
theorem t175 (n : ℕ) : 4 ^ n % 3 = 1 := by
  induction' n with k ih
  norm_num
  rw [pow_succ]
  omega

/-- A power of ten leaves one modulo nine. -/
theorem t176 (n : ℕ) : 10 ^ n % 9 = 1 := by
  induction' n with k ih
  norm_num
  rw [pow_succ]
  omega

/-- Nine is one more than a multiple of eight, in all powers. -/
theorem t177 (n : ℕ) : ∃ k, 9 ^ n = 8 * k + 1 := by
  induction' n with n ih
  exact ⟨0, rfl⟩
  obtain ⟨k, hk⟩ := ih
  use 9 * k + 1
  rw [pow_succ, hk]
  ring

/-- Twice a power of three is more than twice the number. -/
theorem t178 (n : ℕ) : 2 * n + 1 ≤ 3 ^ n := by
  induction' n with k ih
  norm_num
  rw [pow_succ]
  omega

/-- The sum of the first numbers, as a step. -/
theorem t179 (n s : ℕ) (h : 2 * s = n * (n + 1)) : 2 * (s + (n + 1)) = (n + 1) * (n + 2) := by
  rw [mul_add, h]
  ring

/-- The sum of the first odd numbers, as a step. -/
theorem t180 (n s : ℕ) (h : s = n ^ 2) : s + (2 * n + 1) = (n + 1) ^ 2 := by
  rw [h]
  ring

/-- The sum of squares, as a step. -/
theorem t181 (n s : ℕ) (h : 6 * s = n * (n + 1) * (2 * n + 1)) : 6 * (s + (n + 1) ^ 2) = (n + 1) * (n + 2) * (2 * n + 3) := by
  rw [mul_add, h]
  ring

/-- The square of a number is at least the number. -/
theorem t182 (n : ℕ) : n ≤ n ^ 2 := by
  induction' n with k ih
  norm_num
  nlinarith [Nat.zero_le k]

/-- Zero added on the left, by induction. -/
theorem t183 (n : ℕ) : 0 + n = n := by
  induction n with
  | zero => rfl
  | succ k ih => omega

/-- Every number is twice another, or one more. -/
theorem t184 (n : ℕ) : ∃ k, n = 2 * k ∨ n = 2 * k + 1 := by
  induction' n with n ih
  exact ⟨0, Or.inl rfl⟩
  obtain ⟨k, hk⟩ := ih
  rcases hk with hk | hk
  use k
  omega
  use k + 1
  omega

/-- Squares leave zero or one modulo four. -/
theorem t185 (n : ℕ) : n * n % 4 = 0 ∨ n * n % 4 = 1 := by
  have h : ∃ k, n = 2 * k ∨ n = 2 * k + 1 := ⟨n / 2, by omega⟩
  obtain ⟨k, hk⟩ := h
  rcases hk with hk | hk
  have e : n * n = 4 * (k * k) := by rw [hk]; ring
  omega
  have e : n * n = 4 * (k * k + k) + 1 := by rw [hk]; ring
  omega

/-- An odd square is odd. -/
theorem t186 (n : ℤ) (h : ∃ k : ℤ, n = 2 * k + 1) : ∃ m : ℤ, n ^ 2 = 2 * m + 1 := by
  rcases h with ⟨k, hk⟩
  use 2 * k ^ 2 + 2 * k
  rw [hk]
  ring

/-- A claim on the way. -/
theorem t187 (x : ℤ) (h : 2 * x = 10) : x ^ 2 = 25 := by
  have hx : x = 5 := by omega
  rw [hx]
  norm_num

/-- Positive and negative exclude each other. -/
theorem t188 (a : ℤ) (h : 0 < a) : ¬a < 0 := by
  intro g
  linarith

/-- Bounds split into cases. -/
theorem t189 (n : ℕ) (h : n < 3) : n = 0 ∨ n = 1 ∨ n = 2 := by
  omega

/-- Cases of a bounded number. -/
theorem t190 (n : ℕ) (h : n < 3) : n ^ 2 ≤ 4 := by
  have g : n = 0 ∨ n = 1 ∨ n = 2 := by omega
  rcases g with g | g | g
  rw [g]
  norm_num
  rw [g]
  norm_num
  rw [g]
  norm_num

/-- A natural number as an integer is not negative. -/
theorem t191 (n : ℕ) : (0 : ℤ) ≤ n := by
  omega

/-- A cast of a sum. -/
theorem t192 (a b : ℕ) : ((a + b : ℕ) : ℤ) = (a : ℤ) + (b : ℤ) := by
  simp
