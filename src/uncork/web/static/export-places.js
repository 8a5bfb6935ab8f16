// Where the pages of a folder of files are: all in one place, so that they open from a disk too.

export const LIVE = false;

export const places = {
  audit: audit => `audit-${audit}.html`,
  classOf: (audit, id) => `audit-${audit}-class.html#class=${id}`,
  inReport: (audit, id) => `audit-${audit}.html#class=${id}`,
  labelAudit: audit => `label-audit-${audit}.html`,
  labelSet: (audit, set) => `label-audit-${audit}-set.html#set=${set}`,
  compare: (before, after) => `compare.html?before=${before}&after=${after}`,
};
