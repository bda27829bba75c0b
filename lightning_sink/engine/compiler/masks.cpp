// Masks of dropout for many steps at once: the numbers that `bernoulli_` draws, from torch's generator, to the bit.
//
// Torch draws them one after another, 4.6 ns each: two words of its Mersenne Twister, put together to a fraction of 53
// bits, smaller than the probability or not. Here 624 words are made at a time, side by side, and fractions are compared
// as integers. Measured in examples/benchmarks/RESULTS.md.

// Inductor, which writes its own vectors, asks for loops to be left as they are.
#pragma GCC push_options
#pragma GCC optimize("tree-loop-vectorize")

namespace lightning_sink {

constexpr int64_t WORDS = 624, NEAR = 397;  // of the twister, and how far ahead of itself it looks

// How torch's generator gives its state: the first part of `CPUGeneratorImplStateLegacy` (torch 2.11 to 2.13). Whether
// it does so is tried out before it is relied upon (`masks.py`).
struct GeneratorState {
  uint64_t seed;
  int32_t left, seeded;  // words left before the next 624, plus one
  uint64_t next;
  uint64_t words[WORDS];
};

class Twister {
 public:
  explicit Twister(GeneratorState& state) : state_(state), left_(state.left - 1), next_(state.next) {
    std::copy_n(state.words, WORDS, words_);
  }
  ~Twister() {
    std::copy_n(words_, WORDS, state_.words);
    state_.left = left_ + 1;
    state_.next = next_;
  }

  void draw(uint32_t* numbers, int64_t count) {
    while (count > 0) {
      if (left_ == 0) turn();
      const int64_t some = std::min(count, left_);
      for (int64_t i = 0; i < some; ++i) numbers[i] = tempered(words_[next_ + i]);
      numbers += some;
      count -= some;
      left_ -= some;
      next_ += some;
    }
  }

 private:
  void turn() {
    constexpr int64_t FAR = WORDS - NEAR;
    for (int64_t i = 0; i < FAR; ++i) words_[i] = words_[i + NEAR] ^ twisted(words_[i], words_[i + 1]);
    for (int64_t i = FAR; i < WORDS - 1; ++i) words_[i] = words_[i - FAR] ^ twisted(words_[i], words_[i + 1]);
    words_[WORDS - 1] = words_[NEAR - 1] ^ twisted(words_[WORDS - 1], words_[0]);
    left_ = WORDS;
    next_ = 0;
  }
  static uint32_t twisted(uint32_t word, uint32_t other) {
    return ((word & 0x80000000u) | (other & 0x7fffffffu)) >> 1 ^ (-(other & 1u) & 0x9908b0dfu);
  }
  static uint32_t tempered(uint32_t word) {
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680u;
    word ^= word << 15 & 0xefc60000u;
    return word ^ word >> 18;
  }

  GeneratorState& state_;
  int64_t left_, next_;
  uint32_t words_[WORDS];
};

// Ones with some probability, and zeros.
inline void mask(Twister& twister, float* result, int64_t count, double probability) {
  constexpr int64_t MOST = 1024;
  const uint64_t below = static_cast<uint64_t>(std::ceil(probability * static_cast<double>(1ull << 53)));
  uint32_t words[2 * MOST];
  for (; count > 0; count -= MOST, result += MOST) {
    const int64_t some = std::min(count, MOST);
    twister.draw(words, 2 * some);
    for (int64_t i = 0; i < some; ++i) {
      const uint64_t high = words[2 * i] & 0x1fffffu;
      result[i] = (high << 32 | words[2 * i + 1]) < below ? 1.0f : 0.0f;
    }
  }
}

}  // namespace lightning_sink

#pragma GCC pop_options
