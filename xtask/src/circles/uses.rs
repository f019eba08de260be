//! What the text of a source file imports, names and defines.

use std::collections::BTreeSet;

/// See the module's header.
#[derive(Default)]
pub struct Uses {
    /// The name that an import has in the file (`*` for all names), and the path as it is written.
    pub imports: Vec<(String, Vec<String>)>,
    /// Paths of two segments and more in code.
    pub paths: Vec<Vec<String>>,
    /// Names of items.
    pub defined: BTreeSet<String>,
    /// Modules in other files that are compiled for tests only.
    pub test_modules: Vec<String>,
}

impl Uses {
    /// Of all that is compiled into the crate; what is for tests only is left out.
    pub fn of(text: &str) -> Uses {
        let tokens = tokens(text);
        let mut reader =
            Reader { tokens: &tokens, at: 0, uses: Uses::default(), depth: 0, inline: Vec::new() };
        reader.read();
        reader.uses
    }
}

struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    uses: Uses,
    /// Of braces.
    depth: usize,
    /// Depths at which modules within the file begin: `super` in them is the file itself, or the next one of
    /// them.
    inline: Vec<usize>,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn read(&mut self) {
        const ITEMS: [&str; 9] =
            ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "#" if self.is_for_tests() => self.skip_item(),
                "use" => self.imports(),
                // In a macro, a module's name may be a variable.
                "mod" if self.peek(2) == "{" || self.peek(1) == "$" && self.peek(3) == "{" => {
                    self.uses.defined.insert(self.peek(1).to_owned());
                    self.inline.push(self.depth);
                    self.at += 2;
                }
                "{" => self.enter(),
                "}" => self.leave(),
                token if ITEMS.contains(&token) => {
                    let name = if self.peek(1) == "!" { 2 } else { 1 };
                    self.uses.defined.insert(self.peek(name).to_owned());
                    self.at += 1;
                }
                token if is_name(token) => self.path(),
                _ => self.at += 1,
            }
        }
    }

    fn enter(&mut self) {
        self.depth += 1;
        self.at += 1;
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.inline.last() == Some(&self.depth) {
            self.inline.pop();
        }
        self.at += 1;
    }

    fn is_for_tests(&self) -> bool {
        ["#", "[", "cfg", "(", "test", ")", "]"]
            .iter()
            .enumerate()
            .all(|(ahead, token)| self.peek(ahead) == *token)
    }

    /// Leaves out the item behind an attribute.
    fn skip_item(&mut self) {
        let is_import = (7..11).any(|ahead| self.peek(ahead) == "use");
        if let Some(at) = (7..11).find(|ahead| self.peek(*ahead) == "mod" && self.peek(ahead + 2) == ";") {
            self.uses.test_modules.push(self.peek(at + 1).to_owned());
        }
        let mut depth = 0;
        while self.at < self.tokens.len() {
            let token = self.peek(0).to_owned();
            self.at += 1;
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && (token == ";" || token == "}" && !is_import) {
                return;
            }
        }
    }

    fn imports(&mut self) {
        self.at += 1;
        self.import_tree(Vec::new());
    }

    fn import_tree(&mut self, mut path: Vec<String>) {
        loop {
            match self.peek(0).to_owned().as_str() {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.peek(0)) {
                        self.import_tree(path.clone());
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    self.add_import(Some(self.peek(1).to_owned()), path);
                    self.at += 2;
                    return;
                }
                token if token == "*" || is_name(token) => {
                    path.push(token.to_owned());
                    self.at += 1;
                }
                _ => return self.add_import(None, path),
            }
        }
    }

    fn add_import(&mut self, name: Option<String>, mut path: Vec<String>) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let path = self.without_inline(path);
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.uses.imports.push((name, path));
        }
    }

    fn path(&mut self) {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        if path.len() > 1 {
            self.uses.paths.push(self.without_inline(path));
        }
    }

    /// A path of a module within the file, as one of the file.
    fn without_inline(&self, path: Vec<String>) -> Vec<String> {
        let ups = path.iter().take_while(|segment| *segment == "super").count().min(self.inline.len());
        let rest = &path[ups..];
        match rest.first().map(String::as_str) {
            Some("crate" | "self" | "super") | None => rest.to_vec(),
            Some(_) if ups > 0 => [&["self".to_owned()], rest].concat(),
            Some(_) => path,
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Names, `::`, and every other character but blanks by itself; no comments, no texts.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => text_bytes(rest),
            '\'' => quote_bytes(rest),
            _ if raw_text_bytes(rest) > 0 => raw_text_bytes(rest),
            _ if first.is_alphanumeric() || first == '_' => {
                let end =
                    rest.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(rest.len());
                tokens.push(rest[..end].to_owned());
                end
            }
            _ if rest.starts_with("::") => {
                tokens.push("::".to_owned());
                2
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(first.to_string());
                }
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

/// Length of a text in quotation marks.
fn text_bytes(rest: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a raw text such as `r#"…"#`; 0: it is none.
fn raw_text_bytes(rest: &str) -> usize {
    let Some(inner) = rest.strip_prefix('r').or_else(|| rest.strip_prefix("br")) else { return 0 };
    let marks = inner.len() - inner.trim_start_matches('#').len();
    if !inner[marks..].starts_with('"') {
        return 0;
    }
    let (begin, end) = (rest.len() - inner.len() + marks + 1, format!("\"{}", "#".repeat(marks)));
    rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
}

/// Length of a character in quotation marks; 1 for the mark of a lifetime.
fn quote_bytes(rest: &str) -> usize {
    let mut inner = rest[1..].char_indices();
    match (inner.next(), inner.next()) {
        (Some((_, '\\')), _) => rest[3..].find('\'').map_or(rest.len(), |end| 3 + end + 1),
        (Some(_), Some((at, '\''))) => 1 + at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_taken_apart() {
        let uses = Uses::of("pub(crate) use crate::{a::{self, B as C}, d::*};\nuse super::e;");
        let imports: Vec<_> =
            uses.imports.iter().map(|(name, path)| format!("{name}={}", path.join("::"))).collect();
        assert_eq!(imports, ["a=crate::a", "C=crate::a::B", "*=crate::d::*", "e=super::e"]);
    }

    #[test]
    fn comments_texts_and_tests_are_left_out() {
        let text = "fn f<'a>(x: &'a u8) { g::h('\\'', '{', r#\"a::b\"#, \"c::\\\"d\") } /* e::f */\n\
            #[cfg(test)]\nuse i::{j};\n#[cfg(test)]\npub fn k() { l::m() }\nmod n { fn o() { super::p::q() } }";
        let uses = Uses::of(text);
        assert_eq!(uses.paths, [vec!["g", "h"], vec!["self", "p", "q"]]);
        assert!(uses.imports.is_empty() && uses.defined.contains("n") && !uses.defined.contains("k"));
    }
}
