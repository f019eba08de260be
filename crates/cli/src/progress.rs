//! The progress bar of copies.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar in bytes. It is shown on terminals only.
pub fn progress_bar(quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) };
    let template = "{bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is correct");
    ProgressBar::with_draw_target(Some(0), target).with_style(style)
}
