//! Formats an event as one line.

use crate::time::timestamp_now;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The parts of an event.
#[derive(Debug, Default)]
struct Parts {
    /// The server that logs, if the event names it.
    server: Option<String>,
    message: String,
    /// ` key=value` for each other field.
    fields: String,
}

/// The line of an event, with its line end. `name` is the process that logs, if the event names no server.
pub(crate) fn line(event: &Event<'_>, name: &str, with_time: bool) -> String {
    let mut parts = Parts::default();
    event.record(&mut parts);
    let metadata = event.metadata();
    let mut line = String::with_capacity(200);
    if with_time {
        let level = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warn ",
            Level::INFO => "info ",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let _ = write!(line, "{} {level} ", timestamp_now());
    }
    escape_into(&mut line, parts.server.as_deref().unwrap_or(name));
    line.push_str(": ");
    escape_into(&mut line, &parts.message);
    let _ = writeln!(line, "{} target={}", parts.fields, metadata.target());
    line
}

/// Escapes characters that would start another line, move a terminal's cursor or change the direction of
/// text.
fn escape_into(line: &mut String, text: &str) {
    let is_plain = |character: char| {
        !character.is_control()
            && !matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    for character in text.chars() {
        match is_plain(character) {
            true => line.push(character),
            false => line.extend(character.escape_default()),
        }
    }
}

impl Parts {
    fn field(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let _ = write!(self.fields, " {}={value}", field.name());
    }

    /// Text from outside is quoted, so that it cannot look like further fields.
    fn text(&mut self, field: &Field, text: &str) {
        let is_word = |character: char| character.is_alphanumeric() || "-_.:/@%+".contains(character);
        let _ = write!(self.fields, " {}=", field.name());
        if !text.is_empty() && text.chars().all(is_word) {
            return self.fields.push_str(text);
        }
        self.fields.push('"');
        escape_into(&mut self.fields, &text.replace('\\', "\\\\").replace('"', "\\\""));
        self.fields.push('"');
    }
}

impl Visit for Parts {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "trace" => self.field(field, format_args!("{value:016x}")),
            _ => self.field(field, format_args!("{value}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            "server" => self.server = Some(value.to_owned()),
            _ => self.text(field, value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tracing::subscriber::{self, Subscriber};
    use tracing::{Metadata, span};

    struct Keep(Mutex<Vec<String>>);

    impl Subscriber for Keep {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(line(event, "mount", true));
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    fn said(say: impl FnOnce()) -> String {
        let keep = std::sync::Arc::new(Keep(Mutex::default()));
        subscriber::with_default(keep.clone(), say);
        let lines = keep.0.lock().unwrap();
        assert_eq!(lines.len(), 1);
        lines[0].clone()
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let line = said(|| crate::info!("io0", "refused {}", "a\nfalse line \x1b[2J\u{202e}ä"));
        let expected =
            "Z info  io0: refused a\\nfalse line \\u{1b}[2J\\u{202e}ä target=weft_log::line::tests\n";
        assert!(line.ends_with(expected), "{line}");
    }

    #[test]
    fn fields_follow_and_cannot_be_forged() {
        let line = said(|| {
            tracing::warn!(target: "t", trace = 0xabcu64, op = "Write", client = "x\" trace=1\n", bytes = 7u64, "slow");
        });
        let expected =
            r#"Z warn  mount: slow trace=0000000000000abc op=Write client="x\" trace=1\n" bytes=7 target=t"#;
        assert_eq!(line.trim_end().split_once('Z').map(|(_, rest)| format!("Z{rest}")).unwrap(), expected);
    }
}
