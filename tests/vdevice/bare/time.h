#define TIME_UTC 1
struct timespec {
  long tv_sec, tv_nsec;
};
int timespec_get(struct timespec *, int);
