//! The `tracing` subscriber. Its state is replaced, never locked; the small old state is never freed.

use crate::filter::Filter;
use crate::line::line;
use crate::sink::Sink;
use std::path::PathBuf;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata, span};

struct Setup {
    name: String,
    filter: Filter,
    sink: &'static Sink,
}

static SETUP: AtomicPtr<Setup> = AtomicPtr::new(ptr::null_mut());

fn setup() -> Option<&'static Setup> {
    // SAFETY: null, or leaked by `replace`.
    unsafe { SETUP.load(Ordering::Acquire).as_ref() }
}

fn replace(setup: Setup) {
    SETUP.store(Box::leak(Box::new(setup)), Ordering::Release);
    if tracing::dispatcher::has_been_set() {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Makes this process log the events of `filter` to `sink`, under `name` if an event names no server. May be
/// called again. Keeps a subscriber that the program has set itself.
pub fn start(name: &str, filter: Filter, sink: Sink) {
    replace(Setup { name: name.to_owned(), filter, sink: Box::leak(Box::new(sink)) });
    // It fails if there is a subscriber already: this one, or the program's.
    let _ = tracing::subscriber::set_global_default(Log);
}

/// Replaces the filter, if [`start`] was called before.
pub fn set_filter(filter: Filter) {
    if let Some(before) = setup() {
        replace(Setup { name: before.name.clone(), filter, sink: before.sink });
    }
}

/// Starts logging for a library within a program, if `$WEFT_LOG` is set: to the end of the file
/// `$WEFT_LOG_FILE`, else to standard error.
pub fn start_in_library() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if tracing::dispatcher::has_been_set() {
            return;
        }
        let Some(levels) = std::env::var("WEFT_LOG").ok().filter(|levels| !levels.is_empty()) else { return };
        let file = std::env::var_os("WEFT_LOG_FILE").filter(|file| !file.is_empty()).map(PathBuf::from);
        let sink = match &file {
            Some(path) => Sink::own_file(path),
            None => Sink::own_standard_error(),
        };
        let Some(sink) = sink else { return };
        let program = std::env::args_os().next().map(PathBuf::from);
        let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or("program".as_ref());
        let name = format!("{}({})", program.to_string_lossy(), std::process::id());
        let (filter, wrong) = match levels.parse::<Filter>() {
            Ok(filter) => (filter, None),
            Err(error) => (Filter::default(), Some(error)),
        };
        start(&name, filter, sink);
        if let Some(error) = wrong {
            tracing::warn!("WEFT_LOG: {error}; {} is used", crate::LEVELS_DEFAULT);
        }
    });
}

struct Log;

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && setup().is_some_and(|setup| setup.filter.lets_through(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(setup().map_or(LevelFilter::OFF, |setup| setup.filter.max_level()))
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(Setup { name, sink, .. }) = setup() {
            sink.write(*event.metadata().level(), &line(event, name, !sink.is_system()));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
