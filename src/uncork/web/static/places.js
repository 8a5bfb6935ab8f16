// Where the pages of a server are. In a folder of files, export-places.js stands in its place.

/** Whether there is a server that can be asked to compute something. */
export const LIVE = true;

export const places = {
  audit: audit => "/audits/" + audit,
  classOf: (audit, id) => `/audits/${audit}/classes/${id}`,
  inReport: (audit, id) => `/audits/${audit}#class=${id}`,
  labelAudit: audit => "/label-audits/" + audit,
  labelSet: (audit, set) => `/label-audits/${audit}/sets/${set}`,
  compare: (before, after) => `/compare?before=${before}&after=${after}`,
};
