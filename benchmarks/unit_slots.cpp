// Look-ups of known units, by two layouts of a bucket of one cache line.
//
// Four: names of 64 bits and a word each, as in `dataflow/unit_kernels.py`. Five: remainders of 32
// bits and a word each. Rows are visited in three short loops over blocks, as there. "Home alone"
// leaves out the buckets behind the first. Expected: five slots overflow a third as often; figures
// are in decision 16.
//
//     g++ -O3 -march=x86-64-v3 benchmarks/unit_slots.cpp -o unit_slots && ./unit_slots

#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

using Word = uint64_t;
constexpr int LINE = 64, BLOCK = 32, RING = 4, TURNS = 9;
constexpr size_t HUGE_PAGE = 2 << 20, UNITS = 10'000'000, ROWS = 6'000'000;

static double cpu() {
    timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return spent.tv_sec + 1e-9 * spent.tv_nsec;
}

static Word name_of(Word unit) {
    unit = (unit ^ unit >> 31) * 0x9E3779B97F4A7C15;
    unit = (unit ^ unit >> 29) * 0xBF58476D1CE4E5B9;
    return (unit ^ unit >> 32) | 1;  // 0 is free
}

static char *reserved(size_t size) {
    auto *start = static_cast<char *>(mmap(nullptr, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    start += -reinterpret_cast<Word>(start) % HUGE_PAGE;
    madvise(start, size, MADV_HUGEPAGE);
    return start;
}

struct Four {
    using Name = Word;
    static constexpr int SLOTS = 4;
    static Name kept(Word name) { return name; }
    static unsigned equal(const char *bucket, Name name) {
        auto held = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bucket));
        auto same = _mm256_cmpeq_epi64(held, _mm256_set1_epi64x(name));
        return _mm256_movemask_pd(_mm256_castsi256_pd(same));
    }
};

struct Five {
    using Name = uint32_t;
    static constexpr int SLOTS = 5;
    static Name kept(Word name) { return static_cast<Name>(name) | 1; }
    static unsigned equal(const char *bucket, Name name) {
        auto held = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(bucket));
        auto same = _mm256_cmpeq_epi32(held, _mm256_set1_epi32(name));
        return 31 & _mm256_movemask_ps(_mm256_castsi256_ps(same));
    }
};

template <class Layout> struct Table {
    Word buckets;
    char *start;

    explicit Table(Word size) : buckets(size), start(reserved((size + LINE) * LINE)) {
        for (Word unit = 1; unit <= UNITS; unit++) enter(name_of(unit));
    }
    ~Table() { munmap(start, buckets * LINE); }

    char *home(Word name) const { return start + ((name >> 32) * buckets >> 32) * LINE; }
    static unsigned hit(const char *bucket, Word name) {
        return Layout::equal(bucket, Layout::kept(name));
    }
    static char *word(char *bucket, unsigned found) {
        return bucket + LINE - 8 * Layout::SLOTS + 8 * __builtin_ctz(found);
    }
    void enter(Word name) {
        for (char *bucket = home(name); !hit(bucket, name); bucket += LINE)
            if (unsigned free = Layout::equal(bucket, 0)) {
                auto *names = reinterpret_cast<typename Layout::Name *>(bucket);
                names[__builtin_ctz(free)] = Layout::kept(name);
                return;
            }
    }

    // Nanoseconds a row; and the share of rows beyond their first bucket.
    double visit(const std::vector<Word> &rows, bool home_alone, double &beyond) const {
        char *places[RING][BLOCK];
        int later[RING][BLOCK], full[RING] = {};
        size_t blocks = rows.size() / BLOCK, far = 0;
        double began = cpu();
        for (size_t turn = 0; turn < blocks + 3; turn++) {
            if (turn < blocks)
                for (int i = 0; i < BLOCK; i++) {
                    char *bucket = home(rows[turn * BLOCK + i]);
                    places[turn % RING][i] = bucket;
                    _mm_prefetch(bucket, _MM_HINT_T0);
                }
            if (turn >= 1 && turn - 1 < blocks) {
                auto at = (turn - 1) % RING;
                int behind = 0;
                for (int i = 0; i < BLOCK; i++) {
                    char *&place = places[at][i];
                    unsigned found = hit(place, rows[(turn - 1) * BLOCK + i]);
                    _mm_prefetch(place + (found ? 0 : LINE), _MM_HINT_T0);
                    later[at][behind] = i;
                    behind += found == 0;
                    if (found || home_alone) place = word(place, found ? found : 1);
                }
                far += behind;
                full[at] = home_alone ? 0 : behind;
            }
            if (turn >= 2 && turn - 2 < blocks)
                for (int k = 0, at = (turn - 2) % RING; k < full[at]; k++) {
                    int i = later[at][k];
                    char *bucket = places[at][i];
                    unsigned found;
                    do {
                        bucket += LINE;
                        found = hit(bucket, rows[(turn - 2) * BLOCK + i]);
                    } while (!found);
                    places[at][i] = word(bucket, found);
                }
            if (turn >= 3)
                for (char *place : places[(turn - 3) % RING]) *reinterpret_cast<Word *>(place) += 1;
        }
        beyond = static_cast<double>(far) / rows.size();
        return 1e9 * (cpu() - began) / rows.size();
    }
};

template <class Layout> void measure(const char *what, double bytes, const std::vector<Word> &rows) {
    Table<Layout> table(static_cast<Word>(UNITS * bytes / LINE));
    double took[2], beyond;
    for (bool home_alone : {false, true}) {
        std::vector<double> runs;
        for (int turn = 0; turn < TURNS; turn++)
            runs.push_back(table.visit(rows, home_alone, beyond));
        std::nth_element(runs.begin(), runs.begin() + TURNS / 2, runs.end());
        took[home_alone] = runs[TURNS / 2];
    }
    std::printf("%.1f bytes a unit, %s slots: %.1f ns, %.1f %% beyond; home alone %.1f ns\n", bytes,
                what, took[0], 100 * beyond, took[1]);
}

int main() {
    std::mt19937_64 random(5);
    std::vector<Word> rows(ROWS);
    for (Word &row : rows) row = name_of(random() % UNITS + 1);
    for (double bytes : {18.2, 22.4, 27.0}) {
        measure<Four>("four", bytes, rows);
        measure<Five>("five", bytes, rows);
    }
}
