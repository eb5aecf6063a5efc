INLINE DIVIDEND floor_div(DIVIDEND a, DIVISOR b) { return a / b - (a % b < 0); }
INLINE DIVIDEND floor_mod(DIVIDEND a, DIVISOR b) { return a % b + (a % b < 0 ? b : 0); }
INLINE INDEX at(INDEX i, INDEX extent, int *status) {  /* a checked index; negative ones count from the end */
  i = i < 0 ? i + extent : i;
  const INDEX bad = i < 0 || i >= extent;
  REPORT;
  return bad ? 0 : i;
}
