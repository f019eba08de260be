//! The table of all cases.

use crate::calls;

/// One rule.
pub struct Case {
    /// `call: what must hold`, unique.
    pub name: String,
    /// Runs in a fresh, empty directory of mode 0777, as root, with umask 0; panics where the rule does not hold.
    pub run: Box<dyn Fn()>,
}

/// All rules, in groups by system call.
#[derive(Default)]
pub struct Table {
    /// In order of definition.
    pub cases: Vec<Case>,
    group: &'static str,
}

impl Table {
    /// Every case of every group.
    pub fn all() -> Table {
        let mut table = Table::default();
        for (group, define) in calls::GROUPS {
            table.group = group;
            define(&mut table);
        }
        let mut names: Vec<_> = table.cases.iter().map(|case| &case.name).collect();
        names.sort();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert!(twice.is_none(), "two cases have the name {twice:?}");
        table
    }

    /// Adds a case to the group.
    pub fn case(&mut self, rule: impl AsRef<str>, run: impl Fn() + 'static) {
        let name = format!("{}: {}", self.group, rule.as_ref());
        self.cases.push(Case { name, run: Box::new(run) });
    }
}
