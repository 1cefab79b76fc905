#pragma once
// A subcommand is one file: it adds its options to the root and says what to do when chosen.
//
//   void AddTokenize(Commands& commands) {
//     auto options = std::make_shared<TokenizeOptions>();
//     CLI::App* app = commands.Add("tokenize", "Prints the tokens of a text",
//                                  [options] { return Tokenize(*options); });
//     app->add_option("--model", options->model, "...");
//   }
//
// Exit codes: 0 done (whatever was found), 1 a gate that the user asked for failed, 2 bad usage or
// input, 3 internal error.
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"

namespace fathom::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitGateFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitInternal = 3;

// Returns kExitDone or kExitGateFailed; an Error becomes 2 or 3 by its code.
using Action = std::function<Result<int>()>;

class Commands {
 public:
  explicit Commands(CLI::App& root) : parent_(&root) {}

  CLI::App* Add(const std::string& name, const std::string& description, Action action) {
    CLI::App* app = parent_->add_subcommand(name, description);
    app->callback([this, action = std::move(action)] { Choose(action); });
    return app;
  }
  // A family such as `fathom bench serve`: the subcommands of `name`.
  Commands& Group(const std::string& name, const std::string& description) {
    auto& group = groups_[name];
    if (group == nullptr) {
      CLI::App* app = parent_->add_subcommand(name, description);
      app->require_subcommand(1);
      group = std::make_unique<Commands>(*app);
      group->root_ = root_ == nullptr ? this : root_;
    }
    return *group;
  }

  const Action& chosen() const { return chosen_; }

 private:
  void Choose(const Action& action) { (root_ == nullptr ? this : root_)->chosen_ = action; }

  CLI::App* parent_;
  Commands* root_ = nullptr;
  std::map<std::string, std::unique_ptr<Commands>> groups_;
  Action chosen_;
};

// One line a subcommand, defined in the file of its name, called here in the order of the help
// page.
void AddRun(Commands& commands);
void AddServe(Commands& commands);
void AddBenchAttention(Commands& commands);
void AddBenchClaims(Commands& commands);
void AddBenchModel(Commands& commands);
void AddBenchServe(Commands& commands);
void AddDiagnose(Commands& commands);
void AddPictures(Commands& commands);
void AddDoctor(Commands& commands);
void AddScrub(Commands& commands);
void AddTokenize(Commands& commands);
void AddVerify(Commands& commands);

inline void AddAll(Commands& commands) {
  AddRun(commands);
  AddServe(commands);
  AddBenchAttention(commands);
  AddBenchClaims(commands);
  AddBenchModel(commands);
  AddBenchServe(commands);
  AddDiagnose(commands);
  AddPictures(commands);
  AddDoctor(commands);
  AddScrub(commands);
  AddTokenize(commands);
  AddVerify(commands);
}

}  // namespace fathom::cli
