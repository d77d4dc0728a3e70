// The same loops in C++: Count-Min, our lazy sketch (AES-256-CTR, polar Gaussians, one buffer) and
// the paper's forms (a stack of nodes per cell, a normal per merge). Prints CPU ns per key.
// Usage: sketches_peer KEYS.bin (uint32 keys). Compiled and run by benchmarks/sketches.py.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>
#include <vector>

using u32 = uint32_t;
using u64 = uint64_t;
static const int D = 3, CHUNK = 1024, PIECE = 512, REPEATS = 7;
static const u64 A[D] = {0x9E3779B97F4A7C15ull, 0xBF58476D1CE4E5B9ull, 0x94D049BB133111EBull};
static const u64 B[D] = {0x2545F4914F6CDD1Dull, 0xD6E8FEB86659FD93ull, 0xA0761D6478BD642Full};

static double cpu() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static void places_of(const u32* keys, int n, u64 w, u32 out[D][CHUNK]) {
  for (int i = 0; i < D; i++)
    for (int q = 0; q < n; q++) {
      u64 r = (A[i] * keys[q] + B[i]) >> 32;
      out[i][q] = u32((r * w) >> 32);
    }
}

template <class Cell>
static void add(const u32* keys, size_t n, int w, Cell* table) {
  static u32 p[D][CHUNK];
  for (size_t s = 0; s < n; s += CHUNK) {
    int m = int(n - s < CHUNK ? n - s : CHUNK);
    places_of(keys + s, m, w, p);
    for (int q = 0; q < m; q++) {
      table[p[0][q]]++;
      table[w + p[1][q]]++;
      table[2 * w + p[2][q]]++;
    }
  }
}

static __m512i schedule[15];  // any round keys: speed does not depend on them

static void fill(u64 block, u32* out, int groups) {
  const __m512i swap = _mm512_broadcast_i32x4(
      _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0));
  for (int g = 0; g < groups; g++) {
    __m512i s[8];
    for (int r = 0; r < 8; r++) {
      u64 c = block + 32 * g + 4 * r;
      s[r] = _mm512_shuffle_epi8(_mm512_set_epi64(c + 3, 0, c + 2, 0, c + 1, 0, c, 0), swap);
      s[r] = _mm512_xor_si512(s[r], schedule[0]);
    }
    for (int k = 1; k < 14; k++)
      for (int r = 0; r < 8; r++) s[r] = _mm512_aesenc_epi128(s[r], schedule[k]);
    for (int r = 0; r < 8; r++)
      _mm512_storeu_si512(out + 128 * g + 16 * r, _mm512_aesenclast_epi128(s[r], schedule[14]));
  }
}

static void normals(const u32* words, int half, int pairs, float* out) {
  const float turn = float(M_PI / 4 / 2147483648.0), ln2 = float(M_LN2);
  for (int q = 0; q < pairs; q++) {
    u32 a = words[q], b = words[half + q];
    u32 zeros = u32(__builtin_clz(a | 1)), m = a << zeros;
    bool large = m >= 0xB504F334u;
    float f = large ? float(int32_t(m)) * 0x1p-32f : float(int32_t(m ^ 0x80000000u)) * 0x1p-31f;
    float e = large ? float(zeros) : float(zeros + 1);
    float p = 0.129163995f + f * -0.0764046088f;
    p = -0.132412091f + f * p;
    p = 0.141797751f + f * p;
    p = -0.166090503f + f * p;
    p = 0.200020835f + f * p;
    p = -0.250015885f + f * p;
    p = 0.333333224f + f * p;
    p = -0.499999881f + f * p;
    p = 1.0f + f * p;
    float r = std::sqrt(-2.0f * (f * p - e * ln2));
    float x = float(int32_t(b << 2)) * turn, y = x * x;
    float s = x + x * y * (-0.166666508f + y * (0.00833203644f + y * -0.000195039625f));
    float c = 1 + y * (-0.5f + y * (0.0416666158f + y * (-0.00138866191f + y * 2.43798804e-05f)));
    c = b & 0x80000000u ? -c : c;
    r = a - (1u << 18) < u32(0u - (1u << 18) - (1u << 12)) ? r : NAN;
    bool turned = b & 0x40000000u;
    out[q] = r * (turned ? s : c);
    out[pairs + q] = r * (turned ? c : s);
  }
}

static const int32_t UNSURE = INT32_MIN, LARGEST = 1 << 30;

static bool round_about(float scale, float weight, float limit, const float* normal,
                        const int32_t* buffer, int n, int32_t* __restrict noise) {
  int doubts = 0;
  for (int c = 0; c < n; c++) {
    float shift = weight * float(buffer[c]), x = scale * normal[c] + shift, near = rintf(x);
    bool sure = std::fabs(x - near) + 0x1p-22f * std::fabs(shift) < limit;
    int32_t z = int32_t(near);
    noise[c] = sure ? z : UNSURE;
    doubts += !sure;
  }
  return doubts;
}

struct Lazy {
  int w, cells;
  static const int BITS = 18, DECAY = 112957817;  // (1 - theta) 2^32
  double sigma = 26.8, omega = 0.2695;
  std::vector<int16_t> pending;
  std::vector<int32_t> buffer, shown;
  u64 pushes = 0;
  explicit Lazy(int width)
      : w(width), cells(D * width), pending(cells), buffer(cells), shown(cells) {}
  void push() {
    alignas(64) static u32 words[PIECE + 80];
    alignas(64) static float normal[PIECE + 80];
    alignas(64) static int32_t noise[PIECE + 80];
    pushes++;
    for (int start = 0; start < cells; start += PIECE) {
      int n = cells - start < PIECE ? cells - start : PIECE, pairs = (n + 1) / 2;
      int groups = (pairs + 63) / 64;
      fill((pushes * cells + start) * 32, words, groups);
      normals(words, 64 * groups, pairs, normal);
      float limit = float(0.5 - 2.8e-6 * sigma);
      int32_t* __restrict old = &buffer[start];
      if (round_about(float(sigma), float(-omega / (1 << BITS)), limit, normal, old, n, noise))
        for (int c = 0; c < n; c++)
          if (noise[c] == UNSURE)  // the cost of a draw in double precision
            noise[c] = int(rint(sigma * sqrt(-2 * log((words[c % pairs] + .5) * 0x1p-32)) *
                                cos(words[c % pairs] * 1e-9)));
      int32_t* __restrict table = &shown[start];
      int16_t* __restrict counts = &pending[start];
      for (int c = 0; c < n; c++) {
        int32_t v = old[c] - int32_t((int64_t(old[c]) * DECAY) >> 32) + noise[c] * (1 << BITS);
        v = v > LARGEST ? LARGEST : v;
        old[c] = v < -LARGEST ? -LARGEST : v;
        table[c] += counts[c] + noise[c];
        counts[c] = 0;
      }
    }
  }
};

// The paper's counter: a stack of (exact, noise) nodes, a fresh normal for the leaf and each merge.
struct Node {
  int exact;
  double noise;
};
struct Stack {
  std::vector<Node> nodes;
  u32 t = 0;
};
static std::mt19937_64 engine(1);
static void paper_update(Stack& s, int c, std::normal_distribution<double>& law) {
  s.t++;
  s.nodes.push_back({c, law(engine)});
  for (u32 t = s.t; !(t & 1); t >>= 1) {
    Node right = s.nodes.back();
    s.nodes.pop_back();
    s.nodes.back() = {s.nodes.back().exact + right.exact, law(engine)};
  }
}

template <class F>
static double best(F f, size_t keys) {
  double least = 1e300;
  for (int r = 0; r < REPEATS; r++) {
    double t = cpu();
    f();
    t = cpu() - t;
    least = t < least ? t : least;
  }
  return least / double(keys);
}

int main(int argc, char** argv) {
  if (argc < 2) return 1;
  std::ifstream in(argv[1], std::ios::binary | std::ios::ate);
  size_t n = size_t(in.tellg()) / 4;
  std::vector<u32> keys(n);
  in.seekg(0);
  in.read(reinterpret_cast<char*>(keys.data()), std::streamsize(4 * n));
  for (int i = 0; i < 15; i++) schedule[i] = _mm512_set1_epi64(0x9E3779B97F4A7C15ll * (i + 1));
  long long sink = 0;
  std::vector<int32_t> cms(3 * 2000);
  printf("count-min %.4f\n", best([&] { add(keys.data(), n, 2000, cms.data()); }, n));
  for (int s : {1, 4, 8, 16, 32}) {
    Lazy lazy(800);
    double ns = best(
        [&] {
          size_t round = size_t(s) * 800;
          for (size_t at = 0; at < n; at += round) {
            size_t m = n - at < round ? n - at : round;
            add(keys.data() + at, m, 800, lazy.pending.data());
            if (m == round) lazy.push();
          }
        },
        n);
    sink += lazy.shown[0];
    printf("lazy-%d %.4f\n", s, ns);
  }
  std::normal_distribution<double> law(0, 100);
  {
    const int w = 55;
    std::vector<Stack> cells(D * w);
    std::vector<int> pending(D * w);
    size_t m = n < (1u << 18) ? n : (1u << 18);
    double t = cpu();
    for (size_t q = 0; q < m; q++) {
      for (int i = 0; i < D; i++)
        pending[i * w + ((((A[i] * keys[q] + B[i]) >> 32) * w) >> 32)]++;
      for (int i = 0, j = int(q % w); i < D; i++) {
        paper_update(cells[i * w + j], pending[i * w + j], law);
        pending[i * w + j] = 0;
      }
    }
    printf("paper-lazy %.4f\n", (cpu() - t) / double(m));
    sink += (long long)cells[7].nodes.back().noise;
  }
  {
    const int w = 33;
    std::vector<Stack> cells(D * w);
    size_t m = 1 << 13;
    double t = cpu();
    for (size_t q = 0; q < m; q++) {
      int hit[D];
      for (int i = 0; i < D; i++) hit[i] = int((((A[i] * keys[q] + B[i]) >> 32) * w) >> 32);
      for (int i = 0; i < D; i++)
        for (int j = 0; j < w; j++) paper_update(cells[i * w + j], hit[i] == j, law);
    }
    printf("paper-punctual %.4f\n", (cpu() - t) / double(m));
    sink += (long long)cells[7].nodes.back().noise;
  }
  fprintf(stderr, "%lld\n", sink);
  return 0;
}
