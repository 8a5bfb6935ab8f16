// A page with nothing on it but text.
import { start } from "./api.js";

start();
