#pragma once
// Where bytes come from: a file, stdin or memory; plain, gzip or zstd, told apart by content.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace fathom::diagnose {

// A sequence of bytes that can be read once.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills the front of `into` and returns how many bytes; 0 only at the end.
  virtual Result<size_t> Read(std::span<char> into) = 0;
  // Bytes read from the outermost file so far (compressed bytes of a compressed file).
  virtual uint64_t raw_bytes() const = 0;
  // The data end before the format says so, or are corrupt from here on.
  virtual bool damaged() const { return false; }
};

class Input {
 public:
  // A file, "-" for stdin, or the http:// URL of a server's /metrics, which is fetched now and
  // stamped with the time. A directory is an error here: see ExpandPaths.
  static Result<Input> Open(const std::string& path);
  static Result<Input> FromMemory(std::string name, std::string bytes);

  const std::string& name() const { return name_; }
  // The first bytes, uncompressed: up to kPrefixBytes, all when the input is shorter.
  std::string_view prefix() const { return prefix_; }
  bool compressed() const { return compressed_; }
  // The path of a plain regular file, "" otherwise: SQLite opens such a file in place.
  const std::string& plain_path() const { return plain_path_; }

  // Uncompressed bytes from the start (the prefix included); 0 only at the end.
  Result<size_t> Read(std::span<char> into);
  // Everything that is left, refusing more than `limit` bytes.
  Result<std::string> ReadAll(uint64_t limit);
  // The compressed stream is cut short or corrupt: what Read gave so far is all there is.
  bool damaged() const { return stream_->damaged(); }
  uint64_t bytes_read() const { return bytes_read_; }
  // Uncompressed size, where it is known beforehand; 0 otherwise.
  uint64_t size_hint() const { return compressed_ ? 0 : raw_size_; }

  // Called now and then with the share of the input that has been read, 0..1 (never when the size
  // is unknown, as from a pipe).
  void set_progress(std::function<void(double)> progress) { progress_ = std::move(progress); }

  static constexpr size_t kPrefixBytes = 256 << 10;

 private:
  static Result<Input> Start(std::string name, std::unique_ptr<ByteStream> stream);

  std::string name_;
  std::string plain_path_;
  std::unique_ptr<ByteStream> stream_;
  std::string prefix_;
  size_t prefix_read_ = 0;  // bytes of prefix_ that Read has handed out
  uint64_t bytes_read_ = 0;
  uint64_t raw_size_ = 0;  // of the outermost file; 0: unknown
  bool compressed_ = false;
  std::function<void(double)> progress_;
};

// Files named by the user: a directory stands for the regular files below it (hidden ones left
// out), sorted by path; "-" and files for themselves. An empty or missing entry is an error.
Result<std::vector<std::string>> ExpandPaths(std::span<const std::string> paths);

// A contiguous view of the unread part of an input, which grows only when a record does not fit.
class Window {
 public:
  explicit Window(Input& input, size_t capacity = kDefaultCapacity);

  const char* begin() const { return buffer_.get() + begin_; }
  const char* end() const { return buffer_.get() + end_; }
  size_t size() const { return end_ - begin_; }
  std::string_view text() const { return {begin(), size()}; }
  // Offset of begin() in the uncompressed input.
  uint64_t offset() const { return offset_; }

  void Consume(size_t bytes);
  void ConsumeTo(const char* position) { Consume(static_cast<size_t>(position - begin())); }
  // Reads more, keeping what is unread; pointers into the window become invalid. False at the end
  // of the input.
  Result<bool> More();

  // Readable zero bytes behind end(), so that scanners may load whole vectors.
  static constexpr size_t kPadding = 64;
  // Less for an input that is known to be smaller.
  static constexpr size_t kDefaultCapacity = 1 << 20;

 private:
  Input* input_;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_;  // without the padding
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t offset_ = 0;
};

// Lines of an input without their ends ("\n", "\r\n"). A line longer than kMaxLine is cut there and
// its rest skipped.
class LineReader {
 public:
  explicit LineReader(Input& input) : window_(input) {}

  // The next line, valid until the next call; false at the end.
  Result<bool> Next(std::string_view* line);
  uint64_t line_number() const { return line_number_; }  // 1-based, of the last line
  uint64_t offset() const { return offset_; }            // of the last line
  uint64_t bytes() const { return window_.offset(); }    // consumed so far

  static constexpr size_t kMaxLine = 1 << 20;

 private:
  Window window_;
  size_t pending_ = 0;  // bytes of the last line, consumed by the next call
  uint64_t line_number_ = 0;
  uint64_t offset_ = 0;
  bool skip_rest_ = false;  // the last line was cut: its rest comes first
};

}  // namespace fathom::diagnose
